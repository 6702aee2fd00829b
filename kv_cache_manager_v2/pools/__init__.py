"""Mechanism: slots, which of them are free, and the memory behind them. No policy."""
