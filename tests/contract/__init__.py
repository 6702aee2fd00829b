"""One suite for every device."""
