// Package querytest holds the dashboard and the alert rules against what the limiter's metrics really are, with the code
// of Prometheus and Grafana. It is a module of its own, so that nobody inherits these.
package querytest
