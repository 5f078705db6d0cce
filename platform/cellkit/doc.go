// Package cellkit is what every service stands on: how a process starts and
// stops. Its subpackages are the parts: errs (errors), env (settings), web and
// call (HTTP in and out), pg (the cell's database and its fence), bus (messages
// between slots), route (the table in a process), id (identifiers), transfer
// (ledger and money between slots), link (the one border between zones), lease,
// obs (logs, metrics, health). cellkit knows no service.
package cellkit
