package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"example.com/cellmart/platform/cellkit/errs"
)

// explain finds the field that the decoder stumbled over. The decoder names it
// for some errors only (never for a type's own UnmarshalJSON), so the body is
// walked again beside the type; that happens on refused bodies only.
func explain(raw []byte, dst any, err error) error {
	if !json.Valid(raw) {
		var after any
		if json.NewDecoder(bytes.NewReader(raw)).Decode(&after) == nil {
			return ErrInvalidJSON.Msgf("there is text after the JSON object").Because(err)
		}
		return ErrInvalidJSON.Because(err)
	}
	path, unknown := locate(reflect.TypeOf(dst), raw, 0)
	switch {
	case unknown:
		return ErrUnknownField.At(path).Because(err)
	case path == "":
		return ErrInvalidJSON.Because(err)
	}
	// A type may say better than we what it wants.
	var own *errs.Error
	if errors.As(err, &own) {
		return own.At(path)
	}
	return errs.Field(path, "has the wrong type or is out of range").Because(err)
}

// locate gives the path of the first part of raw that doesn't fit t, and
// whether it's a name that t doesn't have.
func locate(t reflect.Type, raw []byte, depth int) (path string, unknown bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if depth > 16 || bytes.Equal(bytes.TrimSpace(raw), []byte("null")) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		return "", false
	}
	switch t.Kind() {
	case reflect.Struct:
		return locateInStruct(t, raw, depth)
	case reflect.Slice, reflect.Array:
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			return "", false
		}
		for i, item := range items {
			if bad, path, unknown := misfit(t.Elem(), item, depth); bad {
				return join("["+strconv.Itoa(i)+"]", path), unknown
			}
		}
	}
	return "", false
}

func locateInStruct(t reflect.Type, raw []byte, depth int) (string, bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return "", false
	}
	fields := jsonFields(t)
	names := make([]string, 0, len(object))
	for name := range object {
		names = append(names, name)
	}
	slices.Sort(names) // the same body is always refused in the same words
	for _, name := range names {
		field, ok := fields[strings.ToLower(name)]
		if !ok {
			return name, true
		}
		if bad, path, unknown := misfit(field, object[name], depth); bad {
			return join(name, path), unknown
		}
	}
	return "", false
}

func misfit(t reflect.Type, raw []byte, depth int) (bad bool, path string, unknown bool) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if d.Decode(reflect.New(t).Interface()) == nil {
		return false, "", false
	}
	path, unknown = locate(t, raw, depth+1)
	return true, path, unknown
}

// jsonFields maps the names that encoding/json accepts, in lower case.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Tag.Get("json") == "-" || !f.IsExported() || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out[strings.ToLower(name)] = f.Type
	}
	return out
}

func join(head, rest string) string {
	if rest == "" || strings.HasPrefix(rest, "[") {
		return head + rest
	}
	return head + "." + rest
}
