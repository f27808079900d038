"""One preference a file, each 0..1; weights come with the snapshot."""
