"""The paper's tables and figures as pure functions of measurement files."""
