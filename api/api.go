// Package api is Cellmart's public API as one OpenAPI 3.1 document. The services
// register exactly its paths; tests hold every answer against it (apitest).
package api

import _ "embed"

//go:embed openapi.yaml
var document string

// YAML is the document.
func YAML() []byte { return []byte(document) }
