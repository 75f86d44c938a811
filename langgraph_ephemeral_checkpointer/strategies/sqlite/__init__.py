"""SqliteSaver and AsyncSqliteSaver."""
