"""Configuration: frozen values that validate themselves when they are made."""
