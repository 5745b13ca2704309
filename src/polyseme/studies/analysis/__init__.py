"""What the rows of a study show: values with intervals, tables and figures."""
