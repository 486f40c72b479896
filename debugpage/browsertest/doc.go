// Package browsertest holds no code. Its tests use the page of package debugpage in a real browser, and are a module of
// their own so that what drives the browser stays out of the main module.
package browsertest
