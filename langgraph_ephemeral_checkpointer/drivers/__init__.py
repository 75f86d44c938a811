"""What psycopg needs whatever the tables: transactions that end, arrays."""
