// Package clienttest runs real HTTP clients, that retry what was refused, and a browser against a server with the
// limiter. It is a module of its own, so that nobody who imports the limiter inherits them. What it finds out is in
// docs/clients.md.
package clienttest
