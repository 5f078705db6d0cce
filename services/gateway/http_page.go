package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/api"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/storefront"
)

const maxLogins = 64 << 10

// page is what browsers see: the shop, which shows the demo's accounts too.
type page struct {
	demoFile string
	shop     *storefront.Shop
}

func newPage(cell, demoFile string) (*page, error) {
	p := &page{demoFile: demoFile}
	var err error
	p.shop, err = storefront.New(cell, p.logins)
	return p, err
}

// pageKey marks the requests to the API that come from a page.
type pageKey struct{}

// ofPage says that a page asks. It has no way to follow a redirect to another
// cell's gateway, whose cookies its visitor may not have: it is forwarded.
func ofPage(ctx context.Context) bool { return ctx.Value(pageKey{}) != nil }

// serve splits the public listener: the API keeps its own paths and the words for
// what isn't there; all else is the shop's, each page counted by its own name.
func (p *page) serve(rest http.Handler, o web.Options) http.Handler {
	pages := web.New(o)
	p.register(pages)
	shop := echo.WrapHandler(p.shop.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rest.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), pageKey{}, true)))
	}), o.Log))
	for _, pattern := range storefront.Patterns() {
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{", ":", "}", "").Replace(path)
		pages.Add(method, path, shop)
		if method == http.MethodGet {
			pages.Add(http.MethodHead, path, shop)
		}
	}
	pages.Any("/*", shop)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, prefix+"/") || strings.HasPrefix(r.URL.Path, "/internal/") {
			rest.ServeHTTP(w, r)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

// register adds the API's document, for programs.
func (p *page) register(e *echo.Echo) {
	e.GET("/api/openapi.yaml", func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-cache")
		return c.Blob(http.StatusOK, "application/yaml", api.YAML())
	})
}

// logins reads the demo's accounts anew each time, since the seed comes after
// the start; without a sound file there are none.
func (p *page) logins() []storefront.Login {
	if p.demoFile == "" {
		return nil
	}
	f, err := os.Open(p.demoFile)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // only read
	raw, err := io.ReadAll(io.LimitReader(f, maxLogins))
	if err != nil {
		return nil
	}
	var list []storefront.Login
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var object struct {
		Logins []storefront.Login `json:"logins"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	return object.Logins
}
