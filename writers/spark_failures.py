"""Telling Spark's errors apart, without Spark: whoever coordinates a job of bytes alone needs no pyspark."""

# Of a query that is wrong, or met a value that it cannot take: it fails again whatever becomes of its tasks.
WRONG_QUERY = frozenset(
    {"AnalysisException", "ParseException", "ArithmeticException", "ArrayIndexOutOfBoundsException", "DateTimeException"}
    | {"IllegalArgumentException", "NumberFormatException", "UnsupportedOperationException", "SparkNoSuchElementException"}
    | {"PySparkTypeError", "PySparkValueError", "PySparkAttributeError", "PySparkNotImplementedError"}
)
PYTHON_FAILED = "PythonException"
# Frames of what Holdfast itself runs in tasks. Any other Python there is the user's.
OWN_FRAMES = ("spark_streamed.py", "spark_files.py", "spark_groups.py")


def is_of_spark(error: BaseException) -> bool:
    """Whether an action of Spark failed by its machinery, or in Holdfast's own work in a task: not by the user's query or functions."""
    kinds = type(error).__mro__
    if not {kind.__module__.partition(".")[0] for kind in kinds} & {"pyspark", "py4j"}:
        return False
    if any(kind.__name__ in WRONG_QUERY for kind in kinds):
        return False
    text = str(error)
    of_python = PYTHON_FAILED in text or any(kind.__name__ == PYTHON_FAILED for kind in kinds)
    return not of_python or any(frame in text for frame in OWN_FRAMES)
