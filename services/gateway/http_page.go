package gateway

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"html/template"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/api"
	"example.com/cellmart/platform/cellkit/web"
	"example.com/cellmart/services/storefront"
)

//go:embed page.html page.css
var pageFiles embed.FS

const maxLogins = 64 << 10

// login is one of the demo's accounts, as the seed writes them.
type login struct {
	Name     string `json:"name"`
	Phone    string `json:"phone"`
	Password string `json:"password"`
	Role     string `json:"role"`
	Cell     string `json:"cell"`
}

// page is what browsers see: the shop, and GET /demo, the demo's accounts, which
// needs no service.
type page struct {
	cell     string
	demoFile string
	html     *template.Template
	shop     *storefront.Shop
}

func newPage(cell, demoFile string) (*page, error) {
	html, err := template.ParseFS(pageFiles, "page.html")
	if err != nil {
		return nil, err
	}
	shop, err := storefront.New(cell)
	if err != nil {
		return nil, err
	}
	return &page{cell: cell, demoFile: demoFile, html: html, shop: shop}, nil
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

func (p *page) register(e *echo.Echo) {
	e.GET("/demo", p.handleHome)
	e.GET("/page.css", func(c echo.Context) error {
		css, err := pageFiles.ReadFile("page.css")
		if err != nil {
			return err
		}
		return p.send(c, "text/css; charset=utf-8", css)
	})
	e.GET("/api/openapi.yaml", func(c echo.Context) error {
		return p.send(c, "application/yaml", api.YAML())
	})
}

func (p *page) handleHome(c echo.Context) error {
	var out bytes.Buffer
	err := p.html.Execute(&out, struct {
		Cell   string
		Logins []login
	}{p.cell, p.logins()})
	if err != nil {
		return err
	}
	return p.send(c, "text/html; charset=utf-8", out.Bytes())
}

// send writes a fixed text that may load nothing but its own style.
func (p *page) send(c echo.Context, contentType string, body []byte) error {
	h := c.Response().Header()
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	return c.Blob(http.StatusOK, contentType, body)
}

// logins reads the demo's accounts anew each time, since the seed comes after
// the start; without a sound file there are none.
func (p *page) logins() []login {
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
	var list []login
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	var object struct {
		Logins []login `json:"logins"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return nil
	}
	return object.Logins
}
