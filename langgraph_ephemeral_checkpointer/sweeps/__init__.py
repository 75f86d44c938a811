"""One sweep and its parts, as plans that know no storage and no colour."""
