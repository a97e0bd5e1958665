"""Submit jobs, follow them, collect their records. Installs and imports without torch."""
