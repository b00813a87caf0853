"""From items to Reverb's messages: item blocks, keys, chunks, packed columns, records of files."""
