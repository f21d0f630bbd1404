"""Parts that many queries have in common."""

# Outside Kubernetes series have no namespace, which .* matches.
SEL = 'namespace=~"$namespace",job=~"$job",instance=~"$instance"'
RI = "[$__rate_interval]"
