"""What those use who wait for answers. It is made of _async by generate.py."""
