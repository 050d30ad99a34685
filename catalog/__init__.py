"""The ledger: facts in, views out, and the protocol's transactions."""

VERSION = "0.1.0"
