"""The style of all pages: colors as CSS variables for light and dark screens, phone width, print."""

_LIGHT = """--ink:#1b2130;--soft:#556074;--faint:#8b95a7;--line:#dde2ea;--paper:#ffffff;--tint:#f4f6f9;--bar:#cfe0f1;
--link:#0b5cad;--alert:#9a3412;--alert-tint:#fff4ec;--grid:#e8ecf1;--s1:#0b62a4;--s2:#c8500a;--s3:#00795a;--s4:#a3407f;
--s5:#8a6100;--s6:#2a87b3;--s7:#5c4db1;--s8:#68717f;color-scheme:light"""
_DARK = """--ink:#e6e9ef;--soft:#a9b2c3;--faint:#7d8798;--line:#343b49;--paper:#14181f;--tint:#1d222c;--bar:#23466b;
--link:#7db8f5;--alert:#ffb38a;--alert-tint:#33231a;--grid:#2a303c;--s1:#6cb4f0;--s2:#ff9a5c;--s3:#4cc9a0;--s4:#e58cc4;
--s5:#e0b84d;--s6:#8bd3f5;--s7:#b3a5f2;--s8:#a3abb8;color-scheme:dark"""
TABLE_STYLE = """
.scroll{overflow-x:auto;margin:.7rem 0;max-width:100%}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.32rem 1.1rem .32rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th:last-child,td:last-child{padding-right:.2rem}
th{font-weight:600;font-size:.86em;color:var(--soft);vertical-align:bottom}
td.n,th.n{text-align:right}td.n{white-space:nowrap}
td.w{overflow-wrap:anywhere;min-width:11rem}
td.heat{background:color-mix(in srgb,var(--s1) calc(var(--share)*.55),transparent)}
td.bar{padding-left:.35rem;min-width:5.5rem;
background:linear-gradient(to right,var(--bar) var(--share),transparent 0) no-repeat 0 50%/calc(100% - .3rem) 72%}
"""
STYLE = f"""
:root{{{_LIGHT}}}
@media screen and (prefers-color-scheme:dark){{:root{{{_DARK}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;scroll-behavior:smooth}}
body{{font:1rem/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;color:var(--ink);
background:var(--paper);margin:0 auto;max-width:50rem;padding:2.4rem 1.25rem 5rem;overflow-wrap:break-word}}
h1{{font-size:1.85rem;line-height:1.2;letter-spacing:-.015em;margin:0 0 .4rem}}
h2{{font-size:1.28rem;line-height:1.3;margin:3rem 0 .7rem;padding-top:1.1rem;border-top:1px solid var(--line)}}
h3{{font-size:1rem;margin:1.7rem 0 .4rem}}
p{{margin:.6rem 0;max-width:72ch}}a{{color:var(--link)}}
p.lead{{color:var(--soft);font-size:1.06rem;margin:0 0 1.4rem}}
p.note{{color:var(--soft);font-size:.89rem}}
nav{{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;font-size:.9rem;margin:1.4rem 0 0}}
nav a{{text-decoration:none}}nav a:hover{{text-decoration:underline}}
dl.figures{{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.7rem;margin:1.2rem 0}}
dl.figures div{{background:var(--tint);border-radius:8px;padding:.75rem .9rem}}
dl.figures dt{{font-size:.82rem;color:var(--soft)}}
dl.figures dd{{margin:0;font-size:1.45rem;line-height:1.25;font-weight:600;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}}
dl.figures dd.detail{{font-size:.82rem;font-weight:400;color:var(--soft);margin-top:.15rem}}
p.warning{{border-left:4px solid var(--alert);background:var(--alert-tint);padding:.6rem .9rem;max-width:none;
border-radius:0 6px 6px 0}}
p.warning b{{color:var(--alert)}}
{TABLE_STYLE}
pre{{background:var(--tint);padding:.8rem 1rem;overflow-x:auto;font-size:.84rem;line-height:1.5;border-radius:6px;
margin:.5rem 0}}
pre,code{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
code{{background:var(--tint);padding:.08rem .3rem;border-radius:4px;font-size:.9em;overflow-wrap:anywhere}}
pre code{{padding:0;overflow-wrap:normal}}
ol.steps{{padding-left:1.3rem;margin:.5rem 0}}ol.steps li{{margin:.9rem 0}}
ol.steps pre{{user-select:all;white-space:pre-wrap;overflow-wrap:anywhere}}
figure{{margin:1.2rem 0 1.6rem}}
figcaption{{color:var(--soft);font-size:.9rem;max-width:72ch;margin-top:.35rem}}
.plot{{overflow-x:auto;max-width:100%}}
svg{{display:block;font-family:inherit;fill:var(--ink);font-size:12px}}
svg.chart{{width:100%;height:auto}}svg.chart path{{vector-effect:non-scaling-stroke}}
ul.legend{{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.2rem;padding:0;margin:.3rem 0;font-size:.88rem}}
ul.legend li{{display:flex;align-items:center;gap:.4rem;overflow-wrap:anywhere}}ul.legend svg{{flex:none}}
.panels{{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(20rem,100%),1fr));gap:1.4rem 2rem}}
.wide table{{font-size:.93rem}}.wide th,.wide td{{padding-right:.9rem}}
.sticky td:first-child,.sticky th:first-child{{position:sticky;left:0;background:var(--paper)}}
@media screen and (min-width:60rem){{.wide{{width:max-content;min-width:100%;max-width:calc(100vw - 4rem);
position:relative;left:50%;transform:translateX(-50%)}}}}
details{{margin:.8rem 0;border:1px solid var(--line);border-radius:6px;padding:0 .9rem}}
summary{{cursor:pointer;padding:.5rem 0;font-weight:600;font-size:.95rem}}
details[open]{{padding-bottom:.6rem}}
blockquote{{margin:.5rem 0;padding:.6rem 1rem;background:var(--tint);border-radius:6px;font-size:.92rem;
white-space:pre-wrap;overflow-wrap:anywhere;max-height:24rem;overflow-y:auto}}
.side{{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}}.side>div{{min-width:0;max-width:100%}}
b.code{{color:var(--s1);border-bottom:2px solid var(--s1);font-weight:600}}
mark{{background:color-mix(in srgb,var(--s2) var(--share,35%),transparent);color:inherit;border-radius:3px}}
mark.minus{{background:color-mix(in srgb,var(--s1) var(--share,35%),transparent)}}
@media (max-width:34rem){{body{{padding:1.4rem 1rem 3rem}}h1{{font-size:1.5rem}}svg.chart{{font-size:18px}}
dl.figures{{grid-template-columns:repeat(auto-fit,minmax(8rem,1fr))}}dl.figures dd{{font-size:1.2rem}}
th,td{{padding-right:.75rem}}}}
@media print{{@page{{margin:1.6cm}}body{{max-width:none;padding:0;font-size:10pt}}nav{{display:none}}
*{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
h2,h3{{break-after:avoid}}figure,tr,dl.figures,li,p.warning{{break-inside:avoid}}
.scroll,.plot,pre,blockquote{{overflow:visible;max-height:none}}pre{{white-space:pre-wrap}}td,th{{overflow-wrap:anywhere}}
table{{font-size:9pt}}.plot svg{{max-width:100%;height:auto}}details::details-content{{content-visibility:visible;
block-size:auto}}details{{border:0;padding:0}}.wide table{{font-size:6.5pt}}.wide th,.wide td{{padding-right:.4rem}}}}
"""
_SCOPE = "polyseme-result"


def scoped_table(table: str) -> str:
    """Wrap a table for a notebook: the style applies to this table only and follows the notebook's text color."""
    variables = "--line:#8884;--soft:inherit;--bar:#4a90d955;--s1:#4a90d9"
    rules = [rule.split("{") for rule in TABLE_STYLE.replace("\n", "").split("}")[:-1]]
    scoped = [
        f"{','.join(f'.{_SCOPE} {name}' for name in names.split(','))}{{{declarations}}}"
        for names, declarations in rules
    ]
    return f'<div class="{_SCOPE}" style="{variables}"><style>{"".join(scoped)}</style>{table}</div>'


def standalone_style() -> str:
    """Return the variables and rules that a chart needs in a file of its own, in light colors."""
    return f"svg{{{_LIGHT};background:var(--paper);fill:var(--ink);font:12px sans-serif}}".replace("\n", "")
