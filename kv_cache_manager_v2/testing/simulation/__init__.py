"""Random histories of a real manager on a simulated device, each repeatable from its seed."""
