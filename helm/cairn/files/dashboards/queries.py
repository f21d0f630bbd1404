"""Parts that many queries have in common."""

SEL = 'job=~"$job",instance=~"$instance"'
RI = "[$__rate_interval]"
