// Package env reads a component's settings from environment variables: each is
// read once, with its meaning beside it, all mistakes are reported together,
// and secrets print as ***. A variable NAME of service X is looked up as
// X_NAME, then as NAME, so services of one cell share what they share and one
// process can still run several of them. What is set in neither may come from a
// file, X_NAME_FILE or NAME_FILE: secrets that an engine mounts stay out of the
// environment, which every `inspect` shows.
package env

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Var is one variable as it was read.
type Var struct {
	Name     string // with the service's prefix
	Value    string // what counts now, *** for a secret that is set
	Default  string
	Doc      string
	Required bool
}

// Secret is a string that doesn't print.
type Secret string

// String hides the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// Reveal gives the value.
func (s Secret) Reveal() string { return string(s) }

// Reader reads variables for one service. Use it once, then ask Err.
type Reader struct {
	prefix string
	getenv func(string) string
	vars   []Var
	errs   []error
}

// NewReader reads for the service with that prefix (upper case, no underscore).
func NewReader(prefix string, getenv func(string) string) *Reader {
	return &Reader{prefix: prefix, getenv: getenv}
}

func (r *Reader) get(name, def, doc string, required, secret bool) string {
	v := r.first(name)
	if v == "" {
		v = r.content(name)
	}
	if v == "" {
		v = def
	}
	shown := v
	if secret {
		shown = Secret(v).String()
	}
	r.vars = append(r.vars, Var{Name: r.prefix + "_" + name, Value: shown, Default: def, Doc: doc, Required: required})
	if required && v == "" {
		r.fail(name, "is not set: "+doc)
	}
	return v
}

// first is the service's own value of a variable, else the shared one.
func (r *Reader) first(name string) string {
	if v := r.getenv(r.prefix + "_" + name); v != "" {
		return v
	}
	return r.getenv(name)
}

// content is what the file named by NAME_FILE has, without the last line's end.
func (r *Reader) content(name string) string {
	path := r.first(name + "_FILE")
	if path == "" {
		return ""
	}
	b, err := os.ReadFile(path)
	if err != nil {
		r.fail(name+"_FILE", "can't be read: "+err.Error())
		return ""
	}
	return strings.TrimRight(string(b), "\r\n")
}

func (r *Reader) fail(name, why string) {
	r.errs = append(r.errs, fmt.Errorf("%s_%s (or %s) %s", r.prefix, name, name, why))
}

// String reads a text with a default.
func (r *Reader) String(name, def, doc string) string { return r.get(name, def, doc, false, false) }

// Required reads a text that must be set.
func (r *Reader) Required(name, doc string) string { return r.get(name, "", doc, true, false) }

// Secret reads a text that is never printed and must be set.
func (r *Reader) Secret(name, doc string) Secret { return Secret(r.get(name, "", doc, true, true)) }

// OptionalSecret reads a text that is never printed and may be missing.
func (r *Reader) OptionalSecret(name, doc string) Secret {
	return Secret(r.get(name, "", doc, false, true))
}

// Int reads a whole number with a default.
func (r *Reader) Int(name string, def int, doc string) int {
	v := r.get(name, strconv.Itoa(def), doc, false, false)
	n, err := strconv.Atoi(v)
	if err != nil {
		r.fail(name, fmt.Sprintf("is %q, not a whole number", v))
	}
	return n
}

// Bool reads true or false with a default.
func (r *Reader) Bool(name string, def bool, doc string) bool {
	v := r.get(name, strconv.FormatBool(def), doc, false, false)
	b, err := strconv.ParseBool(v)
	if err != nil {
		r.fail(name, fmt.Sprintf("is %q, not true or false", v))
	}
	return b
}

// Duration reads a duration (10s, 300ms) with a default.
func (r *Reader) Duration(name string, def time.Duration, doc string) time.Duration {
	v := r.get(name, def.String(), doc, false, false)
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		r.fail(name, fmt.Sprintf("is %q, not a duration such as 300ms", v))
	}
	return d
}

// List reads words separated by commas, blanks dropped.
func (r *Reader) List(name, def, doc string) []string {
	var out []string
	for s := range strings.SplitSeq(r.get(name, def, doc, false, false), ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// Service is the name of the service that is read for.
func (r *Reader) Service() string { return strings.ReplaceAll(strings.ToLower(r.prefix), "_", "-") }

// Look gives the value of a variable that another part of the service reads and
// lists.
func (r *Reader) Look(name string) string { return r.first(name) }

// Fail adds a mistake that the caller found in a value.
func (r *Reader) Fail(name, why string) { r.fail(name, why) }

// Err has every mistake so far, or is nil.
func (r *Reader) Err() error { return errors.Join(r.errs...) }

// Vars lists what was read, in order.
func (r *Reader) Vars() []Var { return r.vars }

// WriteUsage prints a table of variables, their defaults and meanings.
func WriteUsage(w io.Writer, vars []Var) {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, v := range vars {
		def := v.Default
		if v.Required {
			def = "(required)"
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", v.Name, def, v.Doc)
	}
	tw.Flush()
}
