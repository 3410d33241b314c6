"""The source of pando.aio, and of pando._sync: generate.py makes that of it, where
whatever is awaited here is waited for."""
