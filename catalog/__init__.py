"""The ledger: facts in, views out, and the protocol's transactions."""
