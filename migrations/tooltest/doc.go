// Package tooltest runs the migrations with the tools they are written for, and migrations and store
// through PgBouncer. It is a module of its own, so that nobody who imports the migrations inherits the tools.
package tooltest
