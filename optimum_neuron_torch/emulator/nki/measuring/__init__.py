"""What a run leaves to look at: capacity, cost of instructions, an estimated schedule, the report and its pictures."""
