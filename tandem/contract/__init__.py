"""The words that cross a process boundary: plain frozen structs, frames, and what every process does at birth."""
