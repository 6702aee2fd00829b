"""What users configure: frozen values that check themselves when they are made."""
