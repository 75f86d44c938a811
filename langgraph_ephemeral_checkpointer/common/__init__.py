"""What every part may use: checks of arguments, durations, connection strings, lazy names."""
