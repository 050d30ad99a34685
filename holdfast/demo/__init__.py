"""The demonstration: a Spark job on real data that is killed, resumes, and is cleaned up beside."""
