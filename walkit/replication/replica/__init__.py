"""The replica: it follows a primary, and is rewound or promoted when the primary is gone."""
