package storefront

import (
	"fmt"
	"hash/fnv"
	"net/http"
	"strings"
)

// shapes draw what a category sells, in a field of 100 by 100; {a} and {b} are the
// product's colours.
var shapes = map[string]string{
	"electronics": `<path d="M22 62v-8a28 28 0 0 1 56 0v8" fill="none" stroke="{a}" stroke-width="6"/><rect x="16" y="56" width="16" height="26" rx="7" fill="{b}"/><rect x="68" y="56" width="16" height="26" rx="7" fill="{b}"/>`,
	"home":        `<path d="M36 20h28l-6 14c14 8 16 46-2 50H44c-18-4-16-42-2-50z" fill="{b}"/><path d="M33 52c12 6 22-6 34 0" fill="none" stroke="{a}" stroke-width="5"/>`,
	"fashion":     `<path d="M36 20l14 8 14-8 20 14-9 15-9-4v37H34V45l-9 4-9-15z" fill="{b}"/><path d="M36 20a14 11 0 0 0 28 0" fill="none" stroke="{a}" stroke-width="5"/>`,
	"beauty":      `<rect x="34" y="40" width="32" height="44" rx="8" fill="{b}"/><rect x="43" y="20" width="14" height="18" rx="3" fill="{a}"/><path d="M42 60h16M42 70h16" stroke="{a}" stroke-width="4"/>`,
	"sports":      `<circle cx="50" cy="52" r="30" fill="{b}"/><path d="M20 52h60M50 22v60M29 31c12 12 12 30 0 42M71 31c-12 12-12 30 0 42" fill="none" stroke="{a}" stroke-width="4"/>`,
	"toys":        `<rect x="20" y="54" width="28" height="28" fill="{b}"/><rect x="52" y="54" width="28" height="28" fill="{a}"/><path d="M36 50l14-28 14 28z" fill="{b}"/>`,
	"books":       `<path d="M18 26c12-5 24-3 32 4 8-7 20-9 32-4v52c-12-5-24-3-32 4-8-7-20-9-32-4z" fill="{b}"/><path d="M50 30v52" stroke="{a}" stroke-width="4"/>`,
	"food":        `<path d="M20 42h50v16a25 25 0 0 1-50 0z" fill="{b}"/><path d="M70 46h5a9 9 0 0 1 0 18h-6" fill="none" stroke="{a}" stroke-width="5"/><path d="M36 34c-5-6 5-8 0-14M50 34c-5-6 5-8 0-14" fill="none" stroke="{a}" stroke-width="4"/>`,
}

// other draws what a category sells that nobody has drawn yet: a parcel.
const other = `<rect x="22" y="36" width="56" height="44" fill="{b}"/><path d="M22 50h56M50 36v44M36 26l14 10 14-10" fill="none" stroke="{a}" stroke-width="5"/>`

// picture draws a product: the same one for the same ID, in every cell.
func picture(category, id string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	n := h.Sum32()
	hue := n % 360
	shape, ok := shapes[category]
	if !ok {
		shape = other
	}
	colours := strings.NewReplacer(
		"{a}", fmt.Sprintf("hsl(%d,45%%,30%%)", (hue+180+n>>9%60)%360),
		"{b}", fmt.Sprintf("hsl(%d,55%%,60%%)", hue),
	)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100"><rect width="100" height="100" fill="hsl(%d,35%%,90%%)"/>`+
		`<ellipse cx="50" cy="86" rx="32" ry="4" fill="hsl(%d,25%%,75%%)"/><g transform="rotate(%d 50 50)">%s</g></svg>`,
		(hue+40)%360, (hue+40)%360, int(n>>16%13)-6, colours.Replace(shape))
}

// servePicture draws what its address says; it looks nothing up.
func servePicture(w http.ResponseWriter, r *http.Request) {
	id, ok := strings.CutSuffix(r.PathValue("name"), ".svg")
	if !ok || len(id) > 20 || strings.Trim(id, "0123456789") != "" {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	setHeaders(h)
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Content-Type", contentTypes[".svg"])
	h.Set("Cache-Control", "public, max-age=604800")
	_, _ = w.Write([]byte(picture(r.PathValue("category"), id))) // who can't be written to is gone
}
