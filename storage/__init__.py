"""One artifact store, its key layout and its conditional write."""
