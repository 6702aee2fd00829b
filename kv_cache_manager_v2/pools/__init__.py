"""Mechanism: slots, who of them is free, and the memory behind them. No policy."""
