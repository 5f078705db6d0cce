// Package cellmart holds the rules of this repository as tests: who may import
// whom (arch_test.go), one comment per package (pkgdoc_test.go), habits that
// break tests or clones (hygiene_test.go), links that resolve (docs_test.go).
// It has no code to run; the programs are under cmd, and README.md has the map.
package cellmart
