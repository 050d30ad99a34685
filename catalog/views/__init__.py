"""Views in SQL over the ledger, and the engine that answers them."""
