"""Other projects' names for this library; each module is imported by name only, and nothing of the library imports one."""
