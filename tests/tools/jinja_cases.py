"""Templates whose renderings by jinja2 are the goldens of tests/engine/jinja_test.cpp (see make_jinja_goldens.py).

All are rendered with VARIABLES.
"""

VARIABLES = {
    "messages": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello \u00e9\u4e2d\U0001f600"},
    ],
    "items": [3, 1, 2],
    "words": ["b", "A", "c", "B"],
    "people": [{"name": "Bo", "age": 7}, {"name": "al", "age": 5, "tags": ["x"]}, {"name": "Cy", "age": 7}],
    "d": {"b": 1, "a": [1, 2.5, None], "c": {"k": "v"}},
    "n": 7,
    "f": 2.5,
    "s": "Hello, World",
    "u": "\u00e9\u4e2d\U0001f600x",
    "yes": True,
    "no": False,
    "nothing": None,
    "empty": "",
    "html": "<a href=\"x\">&'</a>",
}

WHITE_SPACE = [
    'a\n', 'a\n\n', 'a\r\nb\rc\n', '  {% if yes %}\n  x\n  {% endif %}\n y', '{% if yes %}\nx{% endif %}\n\n',
    'a  {%- if yes -%}  b  {%- endif -%}  c', 'a\n\n  {{- n -}}  \n b', '  {{ n }}\n  {{ n }}\n',
    '  {%+ if yes %}x{% endif %}', '{% if yes +%}\nx{% endif +%}\ny', 'x {# c #}\ny', '  {# c #}\n  y',
    'x {#- c -#} y', 'x\n  {#+ c +#}\n y', '{# {{ n }} {% if %} #}z', '{##}a{#-#}b{#--#}c',
    '{% raw %}{{ n }}{% if %}{% endraw %}', '  {% raw %}\n x {% endraw %}\ny',
    'a {%- raw -%} {{ x }} {%- endraw -%} b', '  {% raw %} x\n  {% endraw %}\n y', '\t{% if yes %}\t{% endif %}\t',
    'x\xa0{%- if yes %} y{% endif %}', '\u2003{% if yes %}a{% endif %}',
    '{% if yes %}  {% endif %}\n  {% if yes %}b{% endif %}', 'a\n{% set z = 1 %}\n{% set y = 2 %}\nb',
    '{% for i in items %}\n{{ i }}\n{% endfor %}\n', '{%- for i in items -%}\n  {{ i }}\n{%- endfor -%}\n',
    '{{ \'{{\' }} {{ \'%}\' }} {{ "#}" }}', '{ {n} } {%raw%}{%endraw%}', '{{n}}{%if yes%}b{%endif%}',
    '{%\n if yes\n%}\nx{%\nendif\n%}\n', "{{ '\n' }}|{{ 'a\r\nb' }}", '\n{% if yes %}\n\n{% endif %}',
    '  {%- if yes %}\n  a\n  {%- endif %}\n', "{{ {'a': {'b': 1}}}}", "{{ {'a': {'b': 1}}['a']['b'] }}",
    '{%- if yes -%}\n\n x \n\n{%- endif %}\n', 'x{%- raw %}\n y{% endraw -%}\n z',
    '  {% raw -%}\n y {%- endraw %}\n z', '{% raw %}{% endraw x %}{% endraw %}',
]

LITERALS = [
    '{{ 1 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 00 }}',
    '{{ 1.5 }} {{ 1e5 }} {{ 1.5e-7 }} {{ 1e16 }} {{ 123456789.125 }}',
    '{{ 1e15 }} {{ 1e22 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1_0.2_5 }} {{ 100.0 }}', '{{ \'a\' "b" \'c\' }}',
    '{{ \'a\\nb\\t\\\\\\\'\\"\\x41\\u00e9\\U0001f600\\101\\0\' }}|', "{{ 'a\\qb\\é\\中' }}", "{{ 'x\\\ny' }}",
    '{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}', "{{ [1, 'a', none, [true]] }} {{ [] }} {{ [1,] }}",
    "{{ (1, 'a') }} {{ (1,) }} {{ () }} {{ (1) }} {{ 1, 2 }}",
    "{{ {'a': 1, 2: 'b', none: 3.0, (1, 2): []} }} {{ {} }}", "{{ {1: 'a', true: 'b', 1.0: 'c'} }}",
    '{{ "it\'s" }} {{ ["it\'s", \'a"b\', \'a"\\\'b\'] }}',
    "{{ ['a\\nb\\t\\r\\\\', '\\x00\\x1f\\x7f', '\\u00a0\\u200b\\u2028é中😀'] }}",
    '{{ 1.0 }} {{ -0.0 }} {{ 1e308 * 10 }} {{ [1.0, 1e16, 1e-5] }}',
    '{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }}',
    '{{ 5e-324 }} {{ 1.7976931348623157e308 }} {{ 0.1 + 0.2 }} {{ 1/3 }}', '{{ x }}|{{ x.y is defined }}', "{{ 'a",
    '{{ 1a }}', '{{ 01 }}', "{{ 'a\\x4' }}", '{{ $ }}', '{{ a! }}',
]

OPERATORS = [
    '{{ 7 + 2 }} {{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ 7 % 2 }} {{ 7 ** 2 }}',
    '{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 // -2 }}',
    '{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 7.5 % -2 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 2.0 ** 3 }}',
    '{{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ -n }} {{ +n }} {{ - -n }}', '{{ 1 + 2 * 3 - 4 / 2 }} {{ (1 + 2) * 3 }}',
    "{{ 'a' + 'b' }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ 'ab' * -1 }}|",
    '{{ [1] + [2] }} {{ [0] * 3 }} {{ (1,) + (2,) }}', '{{ true + 1 }} {{ true * 3 }} {{ 1 + 1.5 }}',
    "{{ 'a' ~ 1 ~ none ~ 2.5 ~ x ~ [1] }}", "{{ 1 ~ 2 + 3 }} {{ 'a' ~ 'b' * 2 }}",
    '{{ 1 < 2 }} {{ 1 <= 1 }} {{ 2 > 1 }} {{ 1 >= 2 }} {{ 1 == 1.0 }} {{ 1 != 2 }}',
    '{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1 == 1 }} {{ 3 > 2 == 2 }}',
    "{{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ (1,) < (1, 0) }} {{ 'Z' < 'a' }} {{ 'é' > 'z' }}",
    "{{ 'ell' in s }} {{ 'x' in s }} {{ 'x' not in s }} {{ '' in '' }}",
    "{{ 3 in items }} {{ 9 in items }} {{ 'a' in d }} {{ 'k' in d.c }} {{ 'a' in x }} {{ 1.0 in items }}",
    "{{ not yes }} {{ not not no }} {{ not x }} {{ yes and no }} {{ no or 'z' }} {{ '' or none }} {{ n and s }}",
    '{{ yes and no or yes }} {{ not yes or yes }} {{ yes if n > 5 else no }}',
    "{{ 'a' if no }}|{{ ('a' if no) is defined }}", "{{ 'a' if no else 'b' if no else 'c' }}",
    ("{{ 'x%sx' % n }} {{ '%s %d %05.2f %r' % ('a', 3, 2.5, 'q') }} {{ '%(a)s' % {'a': 1} }} "
     "{{ '%x %X %o %e %g' % (255, 255, 8, 12345.678, 0.0001) }}"),
    "{{ '%5s|%-5s|%05d|%+d' % ('a', 'b', 42, 7) }} {{ '100%%' % () }}", "{{ 1 + 'a' }}", "{{ 'a' + 1 }}",
    '{{ x + 1 }}', '{{ 1 + x }}', '{{ x < 1 }}', "{{ 1 < 'a' }}", '{{ none < 1 }}', '{{ [] < {} }}', '{{ 1 / 0 }}',
    '{{ 1 // 0 }}', '{{ 1 % 0 }}', '{{ 1.0 / 0 }}', "{{ 1 in 'a' }}", '{{ 1 in 5 }}', "{{ 'a' in none }}",
    '{{ [] in {} }}', '{{ {[]: 1} }}', "{{ -'a' }}", '{{ none + none }}', "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}",
    "{{ '%s' % (1, 2) }}",
    ('{{ x == y }} {{ x == none }} {{ x != 1 }} {{ none == none }} {{ nothing == false }} {{ 0 == false }} '
     "{{ '' == false }}"),
    "{{ [1, [2, {'a': 3}]] == [1, [2, {'a': 3}]] }} {{ (1,) == [1] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }}",
    '{{ 9007199254740993 == 9007199254740992.0 }} {{ 9007199254740993 > 9007199254740992.0 }}',
    "{{ items == [3, 1, 2] }} {{ 2 * items }} {{ s[0] == 'H' }}",
    '{{ n is odd and not n is even }} {{ not n is odd }}', '{{ 10 is divisibleby 5 }} {{ 10 is divisibleby(3) }}',
    '{{ -n|abs }} {{ (-n)|abs }} {{ 2 + n|string|length }}', '{{ 1 if x else 2 if yes }}', '{{ 8 // 3 * 3 + 8 % 3 }}',
]

TESTS = [
    ('{{ x is defined }} {{ n is defined }} {{ x is undefined }} {{ nothing is none }} {{ d.zz is defined }} '
     '{{ d.a is defined }}'),
    '{{ s is string }} {{ n is string }} {{ d is mapping }} {{ items is mapping }} {{ x is mapping }}',
    ('{{ items is iterable }} {{ s is iterable }} {{ n is iterable }} {{ x is iterable }} {{ d is iterable }} '
     '{{ none is iterable }}'),
    ('{{ items is sequence }} {{ s is sequence }} {{ d is sequence }} {{ n is sequence }} {{ x is sequence }} '
     "{{ d.items() is sequence }} {{ (items|map('string')) is sequence }} {{ range(3) is sequence }}"),
    ('{{ n is number }} {{ f is number }} {{ yes is number }} {{ s is number }} {{ n is integer }} '
     '{{ yes is integer }} {{ f is integer }} {{ f is float }} {{ n is float }}'),
    ('{{ yes is boolean }} {{ 1 is boolean }} {{ yes is true }} {{ 1 is true }} {{ no is false }} {{ 0 is false }} '
     '{{ x is false }}'),
    '{{ 3 is odd }} {{ 4 is even }} {{ 3 is not odd }} {{ 4 is not none }}',
    ('{{ 3 is eq 3 }} {{ 3 is equalto 3 }} {{ 3 is ne(4) }} {{ 3 is lt 4 }} {{ 3 is gt 4 }} {{ 3 is le 3 }} '
     '{{ 3 is ge 3 }} {{ 3 is greaterthan 2 }} {{ 3 is lessthan 2 }}'),
    "{{ 3 is in items }} {{ 'b' is in d }} {{ 9 is not in items }} {{ 'x' is in(['x']) }}",
    '{{ range is callable }} {{ s.upper is callable }} {{ n is callable }} {{ x is callable }}',
    '{{ none is sameas none }} {{ yes is sameas true }} {{ 1 is sameas true }}',
    "{{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 'aB' is lower }} {{ '1' is upper }}",
    "{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 'nope' is test }}",
    "{{ 'a' is escaped }} {{ ('a'|e) is escaped }}", "{{ 's' is odd }}", '{{ none is even }}', '{{ n is nosuchtest }}',
    '{% if no %}{{ n is nosuchtest }}{% endif %}ok', '{{ n is defined is defined }}',
    '{{ d.a[0] is number and d.a[2] is none }}',
    '{{ namespace(a=1) is mapping }} {{ namespace() is defined }} {{ namespace() is iterable }}',
    '{{ n is number == true }}', '{{ n is in [1, 7] and yes }}', '{{ not x is defined }}', '{{ (x or n) is defined }}',
]

ACCESS = [
    "{{ d.a }} {{ d['a'] }} {{ d.c.k }} {{ d['c']['k'] }} {{ d.zz }}|{{ d['zz'] }}|",
    '{{ items[0] }} {{ items[-1] }} {{ items[9] }}| {{ items.0 }} {{ items[-9] }}|',
    "{{ messages[0].role }} {{ messages[-1]['role'] }} {{ messages.0.content }}",
    '{{ s[0] }} {{ s[-1] }} {{ s[99] }}|{{ u[0] }} {{ u[1] }} {{ u[-2] }}',
    ('{{ items[1:] }} {{ items[:-1] }} {{ items[::2] }} {{ items[::-1] }} {{ items[5:] }} {{ items[-2:] }} '
     '{{ items[2:0:-1] }}'),
    ('{{ s[1:4] }} {{ s[:5] }} {{ s[-5:] }} {{ s[::-1] }} {{ s[::3] }} {{ u[1:] }} {{ u[::-1] }} {{ u[:-1] }} '
     '{{ s[5:2] }}|'),
    "{{ (1, 2, 3)[1:] }} {{ 'abc'[1] }} {{ [1, 2][1] }} {{ {'a': 1}.a }}",
    "{{ items[none:2] }} {{ items[true] }} {{ items['0'] }}|",
    "{{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.get('a')[1] }}",
    '{{ d.keys() }} {{ d.values() }} {{ d.items() }} {{ d.keys()|list }}',
    '{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}',
    "{{ {'items': 1, 'x': 2}.items() }} {{ {'items': 1}['items'] }} {{ {'get': 3}['get'] }}",
    "{{ none.x }}|{{ n.x }}|{{ nothing['a'] }}|", '{{ x.y }}', "{{ x['y'] }}", '{{ x[0] }}', '{{ x() }}',
    '{{ x.y() }}', '{{ d.zz.q }}', '{{ d.zz() }}', '{{ s.nomethod }}|', '{{ s.nomethod() }}', '{{ items.append }}|',
    '{{ items.append(1) }}', '{{ d.update({}) }}', "{{ d.pop('a') }}", '{{ n() }}', '{{ s.upper.x }}|', '{{ x[1:] }}',
    '{{ n[1:] }}', "{{ items['a':] }}", '{{ items[::0] }}', '{{ d[[]] }}|', '{{ items[1.0] }}|',
    "{{ 'a'['upper']() }} {{ d['keys']() }}",
    '{{ items.count(1) }} {{ items.index(2) }} {{ (1, 1).count(1) }} {{ items.index(9) }}',
    '{{ items.copy() }} {{ d.copy() == d }}', "{{ 'abc'.__class__ }}|", "{{ ''.__class__.__mro__ }}",
    ('{{ range(10)[3] }} {{ range(10)[-1] }} {{ range(3)|length }} {{ range(1, 10, 3)|list }} '
     '{{ range(5, 0, -2)|list }} {{ range(3) }} {{ range(1, 9, 2) }}'),
    '{{ range(0)|list }} {{ 3 in range(5) }} {{ range(100001) }}',
    "{{ dict(a=1, b=2) }} {{ dict({'q': 1}, r=2) }} {{ dict([('a', 1), ('b', 2)]) }} {{ dict() }}",
    '{{ messages[1:][0].content }} {{ messages[:1]|length }} {{ messages|length }}',
    '{{ items[n - 6] }} {{ items[(0)] }} {{ (items)[0] }}', '{{ foo.bar.baz is defined }}',
    '{{ d.b.c is defined }} {{ d.b.c }}|', '{{ loop }}|{{ loop is defined }}',
    '{{ caller is defined }} {{ varargs }}|',
]

METHODS = [
    ("{{ ' a '.strip() }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|{{ 'xxaxx'.strip('x') }} "
     "{{ 'xyaxy'.lstrip('yx') }} {{ 'axy'.rstrip('xy') }} {{ '\xa0\u2003\x1ca\x85'.strip() }}"),
    ("{{ 'a b  c'.split() }} {{ 'a,b,,c'.split(',') }} {{ 'a b c d'.split(' ', 2) }} {{ ''.split() }} "
     "{{ ''.split(',') }} {{ ' a b '.split(none, 1) }} {{ 'a--b'.split('--') }} {{ 'aXbXc'.split('X', maxsplit=1) }}"),
    ("{{ 'a b  c'.rsplit() }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b c d'.rsplit(none, 2) }} {{ 'aaa'.rsplit('aa') }} "
     "{{ 'aaa'.split('aa') }} {{ 'x'.rsplit('y') }}"),
    "{{ s.split('')}}",
    ("{{ s.startswith('He') }} {{ s.startswith('el', 1) }} {{ s.endswith('ld') }} {{ s.startswith(('a', 'H')) }} "
     "{{ s.endswith(()) }} {{ ''.startswith('') }} {{ 'a'.startswith('a', 5) }}"),
    '{{ s.startswith(1) }}',
    ("{{ s.replace('l', 'L') }} {{ s.replace('l', 'L', 1) }} {{ 'aaa'.replace('a', 'aa') }} "
     "{{ 'ab'.replace('', '-') }} {{ 'ab'.replace('', '-', 2) }} {{ 'é中'.replace('', '.') }} "
     "{{ 'a'.replace('b', 'c') }}"),
    '{{ s.upper() }} {{ s.lower() }} {{ s.title() }} {{ s.capitalize() }} {{ s.swapcase() }}',
    ('{{ \'éà ΑΒ\'.upper() }} {{ \'ÉÀ\'.lower() }} {{ \'ñandú\'.capitalize() }} {{ "they\'re bill\'s".title() }} '
     "{{ 'x1y z-w'.title() }}"),
    ("{{ s.find('o') }} {{ s.find('o', 5) }} {{ s.find('zz') }} {{ s.rfind('o') }} {{ u.find('x') }} "
     "{{ s.find('o', -3) }} {{ s.find('o', 0, 4) }} {{ s.find('') }} {{ s.find('', 99) }} {{ s.rfind('o', 0, 5) }}"),
    ("{{ s.index('o') }} {{ s.rindex('o') }} {{ s.count('l') }} {{ 'aaaa'.count('aa') }} {{ 'abc'.count('') }} "
     "{{ s.count('l', 4) }}"),
    "{{ s.index('zz') }}", "{{ ', '.join(['a', 'b']) }} {{ ''.join([]) }}| {{ '-'.join('abc') }}",
    "{{ ','.join([1]) }}",
    ("{{ 'a\nb\r\nc\x0bd\u2028e'.splitlines() }} {{ 'a\nb\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }} "
     "{{ ''.splitlines() }}"),
    ("{{ 'ab'.ljust(5) }}| {{ 'ab'.rjust(5, '*') }} {{ 'ab'.center(5, '-') }} {{ 'abc'.center(6, '-') }} "
     "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }}"),
    "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'a'.partition('=') }} {{ 'a'.rpartition('=') }}",
    "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removeprefix('x') }}",
    ("{{ 'abc'.isalpha() }} {{ 'a1'.isalpha() }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'a1'.isalnum() }} "
     "{{ ' \t'.isspace() }} {{ 'AB'.isupper() }} {{ 'ab'.islower() }} {{ 'é'.isascii() }} {{ '٣'.isdigit() }} "
     "{{ '½'.isnumeric() }} {{ '½'.isdigit() }} {{ 'a b'.isprintable() }}"),
    ("{{ '{} {1}'.format(1, 2) if no else '{}-{}'.format('a', n) }} {{ '{0}{1}{0}'.format('x', 2) }} "
     "{{ '{a} {b[0]} {c.k}'.format(a=1, b=[5], c={'k': 3}) }} {{ '{{}}'.format() }} "
     "{{ '{!r} {!s}'.format('q', 'q') }}"),
    ("{{ '{:5}|{:<5}|{:>5}|{:^5}|{:*^7}|{:.2}'.format('ab', 'ab', 'ab', 'ab', 'ab', 'abc') }} "
     "{{ '{:5}|{:d}|{:.2f}|{:8.3f}'.format(7, 42, 2.555, 1.5) }} {{ '{} {} {}'.format(none, 1.5, [1]) }}"),
    "{{ '{}'.format() }}", "{{ '{x}'.format(y=1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}",
    "{{ '{:d}'.format('a') }}", "{{ '{0.__class__}'.format(1) }}|", "{{ '{:q}'.format(1) }}",
    "{{ s.split(',')[0].strip().lower()[1:] }}",
    ("{{ messages[2].content.split('</think>')[-1].lstrip('\\n') }} "
     "{{ messages[2]['content'].split('</think>')|last|trim }}"),
    '{{ s.strip(1) }}', '{{ s.upper(1) }}', '{{ s.split(bad=1) }}', "{{ s.replace('a') }}", '{{ s.center() }}',
    '{{ (s.upper)() }} {{ s.upper is defined }}',
]

FILTERS = [
    "{{ ' a '|trim }}|{{ 'xax'|trim('x') }} {{ n|trim }} {{ none|trim }} {{ x|trim }}|",
    ("{{ s|upper }} {{ s|lower }} {{ 'foo bar-baz (qux) [a {b <c'|title }} {{ 'aBC'|capitalize }} {{ none|upper }} "
     '{{ n|lower }}'),
    "{{ s|length }} {{ u|length }} {{ items|count }} {{ d|length }} {{ x|length }} {{ ''|length }}", '{{ n|length }}',
    '{{ none|length }}',
    ("{{ items|join }} {{ items|join(', ') }} {{ people|join('-', attribute='name') }} {{ x|join(',') }}| "
     "{{ 'abc'|join('.') }} {{ [none, 1.5, 'a']|join(' ') }} {{ d|join(',') }}"),
    '{{ n|join }}',
    ("{{ x|default('z') }} {{ x|d('z') }} {{ n|default('z') }} {{ ''|default('z') }}| {{ ''|default('z', true) }} "
     "{{ none|default('z') }} {{ none|default('z', boolean=true) }} {{ x|default }}|"),
    ('{{ items|first }} {{ items|last }} {{ []|first }}| {{ []|last }}| {{ s|first }} {{ s|last }} {{ d|first }} '
     '{{ d|last }} {{ x|first }}|'),
    '{{ n|first }}',
    "{{ s|list|length }} {{ d|list }} {{ 'ab'|list }} {{ x|list }} {{ d.items()|list }} {{ (1, 2)|list }}",
    '{{ n|list }}',
    ("{{ people|map(attribute='name')|list }} {{ people|map(attribute='zz', default=0)|list }} "
     "{{ words|map('upper')|join }} {{ people|map(attribute='tags.0')|list }}"),
    ("{{ items|map('string')|list }} {{ [' a', 'b ']|map('trim')|list }} "
     "{{ ['a-b']|map('replace', '-', '+')|list }} {{ x|map('upper')|list }} {{ []|map('nosuch')|list }}"),
    "{{ people|map(attribute='tags.0.q')|list }}", "{{ items|map('nosuch')|list }}", '{{ items|map|list }}',
    ("{{ items|select('odd')|list }} {{ items|reject('odd')|list }} {{ [0, 1, '', 'a']|select|list }} "
     "{{ [0, 1]|reject|list }} {{ items|select('gt', 1)|list }} {{ items|select('in', [1, 2])|list }} "
     "{{ [none, x, 1]|select('defined')|list }}"),
    ("{{ people|selectattr('age', 'equalto', 7)|map(attribute='name')|list }} "
     "{{ people|selectattr('tags')|list|length }} {{ people|rejectattr('age', 'eq', 7)|list }} "
     "{{ people|selectattr('tags', 'defined')|list|length }} "
     "{{ messages|selectattr('role', '==', 'user')|list|length }} "
     "{{ people|rejectattr('tags')|map(attribute='age')|sum }}"),
    "{{ items|select('nosuch')|list }}", '{{ n|select|list }}',
    ("{{ d|items|list }} {{ x|items|list }} {{ d|dictsort }} {{ {'b': 1, 'A': 3, 'c': 2}|dictsort }} "
     "{{ {'b': 1, 'A': 3}|dictsort(true) }} {{ {'b': 2, 'A': 3, 'c': 1}|dictsort(by='value') }} "
     "{{ {'b': 2, 'a': 3}|dictsort(reverse=true) }}"),
    '{{ n|items|list }}',
    ('{{ items|sort }} {{ words|sort }} {{ words|sort(case_sensitive=true) }} {{ items|sort(reverse=true) }} '
     "{{ people|sort(attribute='age')|map(attribute='name')|list }} "
     "{{ people|sort(attribute='age,name')|map(attribute='name')|list }} "
     "{{ people|sort(attribute='name', reverse=true)|map(attribute='name')|list }} {{ 'hello'|sort|join }}"),
    "{{ [1, 'a']|sort }}",
    ('{{ items|reverse|list }} {{ s|reverse }} {{ (1, 2)|reverse|list }} {{ u|reverse }} '
     "{{ (items|map('string'))|reverse }}"),
    '{{ n|reverse }}',
    ("{{ ['a', 'A', 'b', 'a']|unique|list }} {{ ['a', 'A']|unique(case_sensitive=true)|list }} "
     "{{ people|unique(attribute='age')|map(attribute='name')|list }} {{ [1, 1.0, true, 2]|unique|list }}"),
    ("{{ items|sum }} {{ people|sum(attribute='age') }} {{ items|sum(start=10) }} {{ []|sum }} {{ [0.5, 1]|sum }} "
     '{{ [[1], [2]]|sum(start=[]) }}'),
    "{{ ['a']|sum }}",
    ("{{ items|min }} {{ items|max }} {{ words|min }} {{ words|max }} {{ people|max(attribute='age') }} "
     "{{ people|min(attribute='name') }} {{ []|min }}| {{ words|max(case_sensitive=true) }}"),
    ("{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ 4.9|int }} {{ -4.9|int }} {{ none|int }} "
     "{{ '0x1f'|int(base=16) }} {{ '1f'|int(0, 16) }} {{ ' 12 '|int }} {{ '1_0'|int }} {{ yes|int }} {{ ''|int }} "
     "{{ '-5'|int }} {{ '1e3'|int }} {{ '--5'|int }} {{ '0b11'|int(base=2) }} {{ '+7'|int }}"),
    '{{ x|int }}',
    ("{{ '4.5'|float }} {{ '1e3'|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ none|float }} "
     "{{ ' 1.5 '|float }} {{ '.5'|float }} {{ 'inf'|float }} {{ '1_0.5'|float }} {{ '-2'|float }}"),
    '{{ -3|abs }} {{ (-3)|abs }} {{ (-2.5)|abs }} {{ yes|abs }}', "{{ 's'|abs }}",
    ("{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 7|round }} {{ 2.1|round(method='ceil') }} "
     "{{ 2.19|round(1, 'floor') }} {{ 1234.5678|round(2) }} {{ (-0.5)|round }} {{ 0.1|round(3, 'ceil') }}"),
    "{{ 1.5|round(method='x') }}",
    "{{ n|string }} {{ none|string }} {{ d|string }} {{ x|string }}| {{ [1.0, 'a']|string }} {{ true|string }}",
    ("{{ 'a\nb\n\nc'|indent }} {{ 'a\nb'|indent(2, true) }} {{ 'a\n\nb'|indent(2, blank=true) }} "
     "{{ 'a\nb'|indent('> ') }} {{ 'a\nb\n'|indent(1) }}| {{ ''|indent }}|"),
    '{{ n|indent }}',
    "{{ s|replace('l', 'L') }} {{ s|replace('l', 'L', 1) }} {{ n|replace(7, 8) }} {{ s|replace(',', none) }}",
    "{{ s|replace('l') }}",
    ('{{ html|e }} {{ html|escape }} {{ n|e }} {{ (html|e)|e }} {{ html|safe }} {{ html|safe|e }} {{ x|e }}| '
     "{{ ('<'|safe) + '<' }} {{ '<' + ('<'|safe) }} {{ ('<'|safe) ~ '<' }} {{ ['<'|safe] }} {{ '<'|e|length }}"),
    ("{{ 'ab'|center(6) }}| {{ s|truncate(8) }} {{ s|truncate(8, true, '', 0) }} "
     "{{ 'foo bar baz qux'|truncate(9, false, '...', 0) }} {{ s|truncate }} {{ 'abcdefghij'|truncate(5, leeway=0) }}"),
    ('{{ items|batch(2)|list }} {{ items|batch(2, 0)|list }} {{ [1, 2, 3, 4, 5]|slice(3)|list }} '
     "{{ [1, 2, 3, 4]|slice(3, 'x')|list }}"),
    "{{ '%s-%s'|format('a', 1) }} {{ '%(k)s'|format(k=2) }}",
    "{{ people[0]|attr('name') }}| {{ s|attr('upper') is defined }} {{ namespace(a=3)|attr('a') }}", '{{ s|nosuch }}',
    '{% if no %}{{ s|nosuch }}{% endif %}ok', "{{ (s|nosuch) if no else 'ok' }}",
    '{% if yes %}{{ s|nosuch }}{% endif %}', '{{ s|upper|lower|title }} {{ s|upper(1) }}',
    "{{ s|upper() }} {{ ('a' ~ 'b')|upper }} {{ 'a' ~ 'b'|upper }} {{ 'a'|upper ~ 'b' }}",
    '{% filter upper %}a {{ n }} b{% endfilter %}', "{% filter replace('a', 'b')|upper %}banana{% endfilter %}",
    '{% set z %} a {{ n }} {% endset %}[{{ z }}]', '{% set z | trim | upper %} a {{ n }} {% endset %}[{{ z }}]',
    "{{ items|map('string')|map('length')|sum }}",
    ("{{ (items|map('string')) is iterable }} {% set it = items|map('string') %}{{ it|first }}{{ it|list }}"
     '{{ it|list }}'),
    "{% set it = items|select('odd') %}{% for i in it %}{{ i }}{% break %}{% endfor %}{{ it|list }}",
    '{{ (items|select)|length }}', "{{ 'x' in ['x']|map('upper') }} {{ 'X' in ['x']|map('upper') }}",
    "{{ ['a', 'b']|last }} {{ (['a']|map('upper'))|last }}",
]

TOJSON = [
    ('{{ d|tojson }} {{ items|tojson }} {{ s|tojson }} {{ n|tojson }} {{ none|tojson }} {{ yes|tojson }} '
     '{{ f|tojson }} {{ (1, 2)|tojson }} {{ []|tojson }} {{ {}|tojson }}'),
    ('{{ html|tojson }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} '
     '{{ \'a"\\\\\n\t\x08\x0c\x01\x7f/\'|tojson }} {{ \'\u2028\'|tojson }}'),
    '{{ d|tojson(indent=2) }}', "{{ {'b': [1, {}], 'a': []}|tojson(indent=4, sort_keys=true) }}",
    "{{ d|tojson(indent='\t') }}",
    ("{{ d|tojson(separators=(',', ':')) }} {{ d|tojson(indent=none) }} "
     "{{ [1, 2]|tojson(separators=[',', ':'], indent=1) }}"),
    '{{ {1: 2, true: 3, none: 4, 1.5: 5}|tojson }}', '{{ {(1, 2): 3}|tojson }}', '{{ x|tojson }}',
    '{{ d.keys()|tojson }}', '{{ [x]|tojson }}', '{{ range(3)|tojson }}', '{{ namespace()|tojson }}',
    "{{ (items|map('string'))|tojson }}", '{{ messages[2]|tojson }}',
    '{{ [1.0, 1e16, 0.1, 1e-7, 123456789012]|tojson }}', '{{ (1e308 * 10)|tojson }} {{ [true, false]|tojson|safe }}',
    "{{ {'a': 'é'}|tojson(ensure_ascii=True, indent=0) }}",
    "{{ d|tojson|length }} {{ 'tool: ' + d.c|tojson + '!' }} {{ d|tojson(2) }}",
    "{{ [[[]], [{}], {'a': {}}]|tojson(indent=1) }}",
    "{{ {'b': 1, 'a': 2}|tojson(sort_keys=True) }} {{ {'b': 1, 1: 2}|tojson(sort_keys=true) }}",
]

STATEMENTS = [
    '{% set a = 1 %}{{ a }}{% set a = a + 1 %}{{ a }}',
    ('{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d2) = [3, 4] %}{{ c }}{{ d2 }}{% set a, (b, c) = 1, (2, 3) %}'
     '{{ a, b, c }}{% set t = 1, 2 %}{{ t }}'),
    '{% set a, b = 1 %}', '{% set a, b = [1] %}', '{% set a, b = [1, 2, 3] %}', "{% set a, b = 'xy' %}{{ b ~ a }}",
    ("{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}|{% set ns.c = 5 %}"
     "{{ ns.c }}{{ ns['c'] }}"),
    "{% set ns = namespace({'q': 1}, r=2) %}{{ ns.q }}{{ ns.r }}", '{% set d.a = 1 %}', '{% set x.a = 1 %}',
    '{% set ns = namespace() %}{% set ns._a = 1 %}', '{{ namespace(_a=1) }}',
    '{% set ns = namespace(i=0) %}{% for m in messages %}{% set ns.i = ns.i + loop.index %}{% endfor %}{{ ns.i }}',
    '{% set ns = namespace(a=0) %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}',
    '{% for i in items %}{% set a = i %}{% endfor %}{{ a }}|',
    '{% set a = 0 %}{% for i in items %}{{ a }}{% set a = a + i %}{{ a }};{% endfor %}{{ a }}',
    '{% if yes %}{% set a = 5 %}{% endif %}{{ a }}',
    ('{% for i in items %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}'
     '{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}'),
    '{% for i in items %}[{{ loop.previtem }},{{ loop.nextitem }},{{ loop.previtem is defined }}]{% endfor %}',
    "{% for i in items %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    '{% for i in [] %}x{% else %}none{% endfor %}{% for i in [1] %}x{% else %}none{% endfor %}',
    '{% for i in x %}x{% else %}undef{% endfor %}', '{% for i in n %}{% endfor %}', '{% for i in none %}{% endfor %}',
    "{% for c in 'aé中' %}[{{ c }}]{% endfor %}{% for k in d %}{{ k }}{% endfor %}",
    '{% for i in items if i > 1 %}{{ i }}{{ loop.index }}{{ loop.last }}{{ loop.length }} {% endfor %}',
    '{% for i in items if i > 9 %}x{% else %}none{% endfor %}',
    '{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %}',
    '{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}', '{% for a, b in [1] %}{% endfor %}',
    '{% for k, v in d.items() if v is number %}{{ k }}{% endfor %}',
    '{% for i in items %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}',
    '{% for i in items %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% else %}e{% endfor %}',
    ('{% for i in items %}{% for j in [1, 2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }}{{ loop.index }}'
     '{% endfor %}{{ loop.index }};{% endfor %}'),
    '{% break %}', '{% for i in items %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}',
    '{% for i in items %}{% set loop = 1 %}{% endfor %}', '{% for loop in items %}{% endfor %}',
    ('{% for i in range(3) %}{{ i }}{% endfor %}{% for i in items[1:] %}{{ i }}{% endfor %}'
     '{% for i in items|reverse %}{{ i }}{{ loop.last }}{% endfor %}{% for i in 1, 2 %}{{ i }}{% endfor %}'),
    "{% for i in items|map('string') %}{{ loop.revindex }}{{ i }}{{ loop.length }} {% endfor %}",
    '{% for i in (items if yes else []) %}{{ i }}{% endfor %}',
    "{% for m in messages if m.role != 'system' %}{{ m.role }}{{ ',' if not loop.last }}{% endfor %}",
    '{% set ns = namespace(k=2) %}{% for i in items if i >= ns.k %}{{ i }}{% set ns.k = 9 %}{% endfor %}',
    ('{% set ns = namespace(k=2) %}{% for i in items if i >= ns.k %}{{ i }}{{ loop.last }}{% set ns.k = 9 %}'
     '{% endfor %}'),
    '{% for i in items %}{{ loop.changed(i) if false }}{{ loop.nosuch }}{% endfor %}|',
    '{% for i in items %}{{ loop.cycle() }}{% endfor %}',
    ('{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if no %}a{% elif yes %}b{% else %}c{% endif %}'
     '{% if no %}a{% elif no %}b{% else %}c{% endif %}{% if no %}a{% endif %}'),
    ("{% if x %}a{% endif %}{% if '' or [] or {} or 0 or 0.0 or none %}b{% endif %}"
     "{% if [0] and {'a': 0} and 'a' and namespace() %}c{% endif %}"),
    '{% if (1, 2) %}t{% endif %}{% if 1, 2 %}t{% endif %}', '{% if %}{% endif %}', '{% if yes %}', '{% endif %}',
    '{% if yes %}{% endfor %}', '{% else %}', '{% nosuch %}', '{{ }}', '{{ n', '{% if yes', '{# x', '{% raw %}x',
    '{{ n }', '{{ (1 }}', '{{ [1 }}', '{{ 1] }}', '{{ a b }}', '{% set %}', '{% set 1 = 2 %}', '{% set true = 2 %}',
    '{% for in x %}{% endfor %}', '{% for a in %}{% endfor %}', '{{ 1 + }}', '{{ n. }}', '{{ n| }}', '{{ n is }}',
    "{% include 'x' %}", "{% extends 'x' %}",
    '{% macro m(a, b=2) %}[{{ a }},{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=5, a=4) }}{{ m() }}',
    '{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}',
    '{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, c=3) }}',
    '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}', '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}',
    '{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}',
    '{% macro m(a, b) %}{{ a is defined }}{{ b is defined }}{{ b }}{% endmacro %}{{ m(1) }}',
    '{% macro m(a=1, b) %}{% endmacro %}',
    '{% macro fact(n) %}{{ n * fact(n - 1)|int if n > 1 else 1 }}{% endmacro %}{{ fact(5) }}',
    '{% macro m() %}{{ a }}{% endmacro %}{% set a = 1 %}{{ m() }}{% set a = 2 %}{{ m() }}',
    '{% macro m() %}{% set a = 5 %}{{ a }}{% endmacro %}{{ m() }}{{ a }}|',
    '{% macro m(x) %}{{ x }}{{ caller() }}{% endmacro %}{% call m(1) %}body{{ n }}{% endcall %}',
    '{% macro m() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) m() %}{{ a }}+{{ b }}{% endcall %}',
    '{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}',
    '{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}', '{% call n %}x{% endcall %}',
    '{% macro m() %} a {% endmacro %}{{ m()|trim ~ m().strip() }}{{ m.name }}{{ m is callable }}',
    '{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}',
    '{% for i in items %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}',
    '{{ m() }}{% macro m() %}{% endmacro %}',
    ("{% macro m(a, b=1) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3}) }}{{ m(*[1], **{'b': 9}) }}"
     '{{ m(1, *[7]) }}'),
    ('{% macro m(l) %}{% for i in l %}{{ i if i is not iterable else m(i) }}{% endfor %}{% endmacro %}'
     '{{ m([1, [2, [3]], 4]) }}'),
    '{% macro m(x, caller=none) %}{{ caller }}{% endmacro %}{{ m(1) }}',
    '{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}|',
    '{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}|',
    '{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% endwith %}',
    '{% generation %}x{{ n }}{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}|',
    '{%- generation -%} a {%- endgeneration -%} b',
    '{% for i in items %}{% generation %}{{ i }}{{ loop.index }}{% endgeneration %}{% endfor %}', '{% print n, s %}',
    '{% do n %}', "{{ raise_exception('bad ' ~ n) }}", "{% if no %}{{ raise_exception('bad') }}{% endif %}ok",
    '{{ raise_exception() }}',
    "{{ strftime_now('%d %b %Y|%Y-%m-%d|%B|%H:%M:%S|%A %a|%y|%j|%I %p|%%|%e|%-d|%D|%F|%T|x') }}",
    '{{ strftime_now(1) }}', '{{ strftime_now is defined }} {{ raise_exception is defined }} {{ tojson is defined }}',
    '{% set x = 1 -%}  \n  {{ x }}', '{% set a = [] %}{{ a.append(1) }}',
    '{% set messages = messages[1:] %}{{ messages|length }}{{ messages[0].role }}',
    "{% set m = messages[0] %}{% if m['role'] == 'system' %}{{ m.content|trim }}{% endif %}",
    '{% set q %}{% set inner = 1 %}{{ inner }}{% endset %}{{ q }}{{ inner }}|',
    '{% set a = x %}{{ a is defined }}{{ a }}|', '{% set a = x.y %}', '{%set a=1%}{{a}}{%-set b=2-%}{{b}}',
    "{% set content = message.content if message is defined else '' %}[{{ content }}]",
    "{{ (messages|first).role }}{{ (messages[1:]|last)['role'] }}",
    "{% if 'system' in messages[0].role and messages|length > 1 %}y{% endif %}",
    "{% if messages[0]['role'] == 'system' %}{{ messages[0].content.strip() }}{% endif %}",
    "{{- '<|im_start|>' + messages[1].role + '\\n' + messages[1].content + '<|im_end|>' + '\\n' }}x",
]

ALL = WHITE_SPACE + LITERALS + OPERATORS + TESTS + ACCESS + METHODS + FILTERS + TOJSON + STATEMENTS
