"""What is kept, as tables: the statements that every storage over SQL shares."""
