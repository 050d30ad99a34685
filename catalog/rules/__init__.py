"""The protocol's decisions: from the state of the catalog to the facts of one transaction. Pure."""
