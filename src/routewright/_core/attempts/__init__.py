"""What happens between a plan and its answer: attempts, faults, circuits, health. Pure."""
