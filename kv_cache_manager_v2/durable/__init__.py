"""The parts that outlive the process: the folder of a durable level, its index, and the thread that writes it."""
