"""States of embedded stores: directories of files, of one subtask each."""
