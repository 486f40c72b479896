// Package krow holds one small server three times: with its limits in a map of each process (before), with
// them in Postgres (after), and with both at once to compare them (during). Nothing differs but
// httpserver/ratelimit.go and the lines of main.go that make the limits, which a test checks.
// docs/migrating-from-a-map.md goes through them.
package krow
