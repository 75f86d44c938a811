"""TenantPostgresSaver and AsyncTenantPostgresSaver."""
