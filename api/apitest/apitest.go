// Package apitest holds answers against the API document, for tests.
package apitest

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
	"github.com/pb33f/libopenapi/datamodel"

	validator "github.com/pb33f/libopenapi-validator"

	"example.com/cellmart/api"
)

// Check fails the test when the answer isn't one that the document allows: its
// path, method, status, content type and body. Of a request that was accepted it
// checks the parameters and the body too, so that the document promises no less
// than the services take. The answer's body can be read again afterwards; the
// request's is taken from GetBody. Paths outside /api/v1 are nothing to it.
func Check(t testing.TB, r *http.Request, res *http.Response) {
	t.Helper()
	if err := Validate(r, res); err != nil {
		t.Error(err)
	}
}

// Serve has a handler answer a request, and checks both.
func Serve(t testing.TB, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	Check(t, r, rec.Result())
	return rec
}

// Prepare reads the document now: a test that measures waits doesn't want it in
// the middle.
func Prepare(t testing.TB) {
	t.Helper()
	if _, err := document(); err != nil {
		t.Fatal(err)
	}
}

// document is parsed once: it is large, and a test asks often.
var document = sync.OnceValues(load)

func load() (validator.Validator, error) {
	doc, err := libopenapi.NewDocumentWithConfiguration(api.YAML(), &datamodel.DocumentConfiguration{
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	v, errs := validator.NewValidator(doc, config.WithFormatAssertions(), config.WithoutSecurityValidation())
	if len(errs) > 0 {
		return nil, fmt.Errorf("openapi.yaml: %v", errs)
	}
	return v, nil
}

// Validate says what Check would fail with.
func Validate(r *http.Request, res *http.Response) error {
	if !strings.HasPrefix(r.URL.Path, "/api/v1/") {
		return nil
	}
	v, err := document()
	if err != nil {
		return err
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	res.Body.Close()
	defer func() { res.Body = io.NopCloser(bytes.NewReader(body)) }()
	seen := *res
	seen.Body = io.NopCloser(bytes.NewReader(body))
	what := fmt.Sprintf("%s %s: answer %d %.300s", r.Method, r.URL.Path, res.StatusCode, body)
	if len(body) == 0 && res.StatusCode == http.StatusNoContent {
		seen.Body = http.NoBody
	}
	if ok, problems := v.ValidateHttpResponse(r, &seen); !ok && !nowhere(res, problems) {
		return explain(what, problems)
	}
	if res.StatusCode >= 300 {
		return nil
	}
	asked := r.Clone(r.Context())
	asked.Body = http.NoBody
	if r.GetBody != nil {
		if asked.Body, err = r.GetBody(); err != nil {
			return fmt.Errorf("read the request again: %w", err)
		}
	}
	if ok, problems := v.ValidateHttpRequestSync(asked); !ok {
		return explain(what+", accepted", problems)
	}
	return nil
}

// nowhere says that the answer is 404 or 405 for a path or method that the
// document doesn't have either: only its being a problem could be checked.
func nowhere(res *http.Response, problems []*errors.ValidationError) bool {
	if res.StatusCode != http.StatusNotFound && res.StatusCode != http.StatusMethodNotAllowed {
		return false
	}
	return len(problems) > 0 && (problems[0].IsPathMissingError() || problems[0].IsOperationMissingError())
}

func explain(what string, problems []*errors.ValidationError) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\ndoes not fit api/openapi.yaml:", what)
	for _, p := range problems {
		fmt.Fprintf(&b, "\n  %s: %s", p.Message, p.Reason)
		for _, s := range p.SchemaValidationErrors {
			fmt.Fprintf(&b, "\n    %s %s", s.FieldPath, s.Reason)
		}
	}
	return fmt.Errorf("%s", b.String())
}

// Operations lists what the document has, as "GET /api/v1/products/{id}".
func Operations(t testing.TB) []string {
	t.Helper()
	var out []string
	path := ""
	for line := range strings.Lines(string(api.YAML())) {
		if line == "components:\n" {
			break
		}
		switch text := strings.TrimSuffix(line, ":\n"); {
		case strings.HasPrefix(text, "  /"):
			path = strings.TrimSpace(text)
		case path != "" && strings.HasPrefix(text, "    ") && !strings.HasPrefix(text, "     ") && text != line:
			out = append(out, strings.ToUpper(strings.TrimSpace(text))+" "+path)
		}
	}
	if len(out) == 0 {
		t.Fatal("openapi.yaml has no paths in the layout that is read here")
	}
	return out
}
