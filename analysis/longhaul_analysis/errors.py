"""What users see when something is wrong: one line that names the file, the field and the fix."""


class AnalysisError(Exception):
    """Data that cannot be used; the command ends with exit code 1."""

    exit_code = 1


class UsageError(AnalysisError):
    """A command line that cannot be carried out; the command ends with exit code 2."""

    exit_code = 2
