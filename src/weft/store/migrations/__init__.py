"""How the tables came to be, one step a file; run by `store.database` when a database is older than the code."""
