// Package web is the HTTP side of every service: an echo with the same edge
// around each handler, one shape of errors, strict input.
//
//	request -> request id -> access log, metrics -> panic net -> deadline
//	        -> body limit -> [RouteContext] -> handler
//	answer  <- X-Cell, X-Route-Version, X-Request-Id <- problem+json for errors
//
// Handlers are methods handleX(c echo.Context) error: bind, call, write. They
// return errors and never write them.
//
//	what goes wrong                     answer
//	no such path, method                404, 405 with Allow
//	body not JSON, too long, too slow   415, 413, 408
//	unknown field, wrong type           400 and the field's path
//	malformed ID in the path            404: tells nothing about what exists
//	tampered cursor                     400 INVALID_CURSOR
//	handler out of time                 503; 503 OUTCOME_UNKNOWN if it may have written
//	panic, unknown error                500 with the request id, text in the log
//
// Two traps of echo v4 are closed here (scenario S-W13): its default error
// handler turns a wrapped 404 into a 500, and its Bind lets a body overwrite a
// path's ID. Ours is installed as echo's Binder too, and reads the body only.
package web
