"""What the tests share: builders, virtual time, a simulated engine, and fast folders."""
